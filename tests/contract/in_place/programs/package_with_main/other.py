def name_of_other():
    return __name__
