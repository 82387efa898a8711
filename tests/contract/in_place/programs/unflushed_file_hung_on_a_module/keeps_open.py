FILE = open("of_the_module.txt", "w")
