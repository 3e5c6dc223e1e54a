"""How clients and owners talk to a coordinator's home; the homes themselves stand elsewhere."""
