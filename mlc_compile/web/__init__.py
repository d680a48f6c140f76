"""An artifact in the browser: a server of files on this machine, and the page that chats."""
