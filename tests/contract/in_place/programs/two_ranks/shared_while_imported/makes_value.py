import multiprocessing

VALUE = multiprocessing.Value("i", 0)
