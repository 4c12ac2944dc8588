"""Parts that readers and writers of every framework share."""
