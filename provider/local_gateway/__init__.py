"""The embedded gateway: what buyers call over HTTP and providers dial by websocket, on one port."""
