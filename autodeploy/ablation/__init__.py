"""What each feature buys: features of a strategy switched one at a time, and the published effects reproduced."""
