WHO = "my psutil"
