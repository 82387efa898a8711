"""All that the tests of this folder import of the inner modules of the product."""
