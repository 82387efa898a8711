WHO = "my datasets"
