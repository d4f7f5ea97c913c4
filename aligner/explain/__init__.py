"""Why a layer is wrong: a catalogue of causes, and the rules and figures that recognise them. Knows no framework."""
