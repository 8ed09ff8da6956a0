"""The process that runs instances of a model that is not an LLM: started by name, one model version each. May import what a back end needs."""
