WHO = "my resource"
