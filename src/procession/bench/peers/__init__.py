"""Programs of other stream processors, which `procession bench peers` runs in environments of their own."""
