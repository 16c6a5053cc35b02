"""What the decisions ask of Kafka and of the stores: protocols, and the plain values that cross them."""
