"""What can answer a request: one interface (`base`), implementations loaded by name (`registry`)."""
