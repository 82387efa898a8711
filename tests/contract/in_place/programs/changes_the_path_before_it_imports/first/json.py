WHO = "my json"
