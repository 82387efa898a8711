WHO = "my ctypes"
