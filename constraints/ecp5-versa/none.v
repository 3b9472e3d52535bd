// Nothing beside the emitted modules.
