WHO = "my msgspec"
