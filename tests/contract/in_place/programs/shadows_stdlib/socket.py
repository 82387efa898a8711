WHO = "my socket"
