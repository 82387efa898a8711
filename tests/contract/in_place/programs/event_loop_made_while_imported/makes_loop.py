import asyncio

LOOP = asyncio.new_event_loop()
