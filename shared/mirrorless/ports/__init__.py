"""The ports of the decisions on Kafka and on the stores: protocols, and the plain values that cross them."""
