WHO = "my struct"
