import socket

SERVER = socket.create_server(("127.0.0.1", 0))
