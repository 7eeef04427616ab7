"""Reports: `findings` turns results into verdicts and sentences, the other modules print them."""
