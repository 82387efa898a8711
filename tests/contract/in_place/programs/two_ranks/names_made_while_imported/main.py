"""Folders, ports and numbers that local modules take while they are imported are each rank's own."""

import os

import keeps_process
import takes_file
import takes_folder
import takes_folder_by_hand
import takes_port

print("folder", takes_folder.FOLDER.name)
print("folder by hand", takes_folder_by_hand.FOLDER)
print("file", takes_file.FILE.name)
print("port", takes_port.SERVER.getsockname()[1])
print("process", keeps_process.PROCESS)
print("is ours", keeps_process.PROCESS == os.getpid(), keeps_process.PARENT == os.getppid())
print("is there", os.path.isdir(takes_folder.FOLDER.name), os.path.exists(takes_file.FILE.name))
os.rmdir(takes_folder_by_hand.FOLDER)
