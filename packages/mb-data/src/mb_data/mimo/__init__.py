"""mimo."""
