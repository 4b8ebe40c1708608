"""The protocol of forms, and the parts that several of them share."""
