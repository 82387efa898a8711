WHO = "my launcher"
