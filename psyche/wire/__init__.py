"""What crosses process borders: messages, signatures and the ports that backends, networks and trainers fill."""
