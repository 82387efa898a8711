WHO = "my array"
