"""A server and a client over TCP, with a timeout set for all."""

import http.client
import http.server
import socket
import threading

print(socket.getdefaulttimeout())


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_words):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
connection = http.client.HTTPConnection(*server.server_address)
connection.request("GET", "/path")
print(connection.getresponse().read())
