// Search from a folder: browsers start no workers for file: pages, so the search worker runs in a hidden frame.
// Over HTTP this file does nothing. The plugin "offline" looks for "iframe-worker" in its name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inner = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inner) return;
        const heard = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(heard);
        if (this.onmessage) this.onmessage(heard);
      });
      this.ready = new Promise((resolve) => { frame.onload = resolve; });
      // A worker's script calls postMessage and importScripts; those of the frame stand in for them.
      const code = `
        const outer = parent;
        self.postMessage = (data) => outer.postMessage(data, "*");
        self.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, fail) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: fail });
          document.head.appendChild(script);
        })), Promise.resolve());`;
      const page = `<head><script>${code}<\/script><script src="${new URL(url, location)}"><\/script></head>`;
      this.inner.document.open();
      this.inner.document.write(page);
      this.inner.document.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.inner.frameElement.remove(); }
  };
}
