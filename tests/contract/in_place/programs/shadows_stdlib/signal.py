WHO = "my signal"
