import __main__ as main

SEEN = main.__name__, main.__file__, hasattr(main, "VALUE"), hasattr(main, "sys")
