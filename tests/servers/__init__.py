"""Real servers as children of a test run or a benchmark: on free ports, gone when it ends, however it ends."""
