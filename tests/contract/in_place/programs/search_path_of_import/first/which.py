WHO = "the one in first"
