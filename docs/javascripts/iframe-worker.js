// Browsers start no worker from file:// addresses. There, a frame of the page's own origin runs the script of the site's
// search in a worker's place, so that the site can be searched from a disk.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.inner.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)));
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  }
  window.IFrameWorker = window.Worker = FrameWorker;
}
