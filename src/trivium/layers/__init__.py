"""Building blocks of models: weights with their sharding and loading, and how they are applied."""
