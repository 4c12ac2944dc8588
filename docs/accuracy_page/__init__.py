"""The accuracy page: errors of the shipped records beside their aims."""
