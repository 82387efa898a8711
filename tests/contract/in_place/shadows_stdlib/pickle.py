WHO = "my pickle"
