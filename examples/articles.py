"""A few articles and questions about them in the format of HotpotQA, for the examples that search."""

from __future__ import annotations

COUNTRIES = {
    "Peru": ("Lima", "the Inca town Machu Picchu"),
    "Ecuador": ("Quito", "the Galápagos Islands"),
    "Kenya": ("Nairobi", "the Maasai Mara reserve"),
    "Norway": ("Oslo", "the Geirangerfjord"),
    "Japan": ("Tokyo", "the mountain Fuji"),
    "Egypt": ("Cairo", "the pyramids of Giza"),
    "Nepal": ("Kathmandu", "the mountain Sagarmatha"),
    "Jordan": ("Amman", "the rock city Petra"),
}


def rows() -> list[dict[str, object]]:
    """Questions that need two articles each: one about the country, one about its capital."""
    context = []
    for country, (capital, sight) in COUNTRIES.items():
        context.append([country, [f"{country} is a country that is known for {sight}."]])
        context.append([capital, [f"{capital} is the capital and largest city of {country}."]])
    return [
        {
            "question": f"What is the capital of the country that is known for {sight}?",
            "answer": capital,
            "supporting_facts": [[country, 0], [capital, 0]],
            "context": context,
        }
        for country, (capital, sight) in COUNTRIES.items()
    ]
