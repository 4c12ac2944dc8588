"""Services: the transaction boundary below the command line, the API and the pages."""
