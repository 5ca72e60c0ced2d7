"""Fill-in-the-middle data on Megatron Core's GPT datasets: section, rules, builder and dataset."""
