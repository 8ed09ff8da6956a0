"""The operators models are made of: a plain torch reference of each, and faster versions for the devices that have them."""
