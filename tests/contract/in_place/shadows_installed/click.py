WHO = "my click"
