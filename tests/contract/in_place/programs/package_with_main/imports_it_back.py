def other_name():
    from . import imported_twice

    return imported_twice.__name__
