# -*- coding: latin-1 -*-
"""The file's encoding is the one in its cookie."""

import sys

print(ascii("©"), sys.getdefaultencoding(), __doc__)
