"""What a lock is: pure values and algorithms, no driver, no clock of its own."""
