"""Programs that use takehold; the tests run them."""
