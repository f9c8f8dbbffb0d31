"""The gRPC service: servicer, engine host, tokenizer, templates, detokenizer. All meets here."""
