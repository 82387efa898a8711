WHO = "my select"
