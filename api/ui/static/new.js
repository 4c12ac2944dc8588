// Sends the form as a spec and puts complaints beside their fields; without scripts the form posts itself.
(() => {
  const form = document.getElementById("fields");
  if (!form) return;
  const summary = document.getElementById("summary");

  const typed = (text, kind) => {
    const bare = text.replaceAll(/[,_]/g, "");
    if (kind === "integer" && /^[+-]?\d+$/.test(bare)) return Number.parseInt(bare, 10);
    if (kind === "number" && bare !== "" && Number.isFinite(Number(bare))) return Number(bare);
    return text;
  };

  // A field's name is the JSON pointer of its place in the spec.
  const specDocument = () => {
    const spec = {};
    for (const field of form.querySelectorAll("[data-kind]")) {
      const text = field.value.trim();
      if (text === "") continue;
      const steps = field.name.slice(1).split("/");
      const last = steps.pop();
      const parent = steps.reduce((place, step) => (place[step] ??= {}), spec);
      parent[last] = typed(text, field.dataset.kind);
    }
    return spec;
  };

  const paragraph = (error) => {
    const element = document.createElement("p");
    element.textContent = error.message;
    if (error.hint) {
      const hint = document.createElement("span");
      hint.className = "hint";
      hint.textContent = error.hint;
      element.append(document.createElement("br"), hint);
    }
    return element;
  };

  const clear = () => {
    summary.hidden = true;
    for (const place of form.querySelectorAll(".field")) {
      place.classList.remove("wrong");
      place.querySelector(".errors").replaceChildren();
      place.querySelector("[data-kind]").removeAttribute("aria-invalid");
    }
  };

  const complain = (errors) => {
    clear();
    const places = [...form.querySelectorAll("[data-pointer]")];
    const list = summary.querySelector("ul");
    list.replaceChildren();
    for (const error of errors) {
      const at = error.pointer || "";
      const place = places.find((p) => at === p.dataset.pointer || at.startsWith(`${p.dataset.pointer}/`));
      const line = document.createElement("li");
      const name = document.createElement(place ? "a" : "code");
      list.append(line);
      if (!place) {
        name.textContent = at;
        line.append(name, " ", error.message, error.hint ? ` · ${error.hint}` : "");
        continue;
      }
      name.href = `#${place.querySelector("[data-kind]").id}`;
      name.textContent = place.querySelector("label").textContent;
      line.append(name);
      place.classList.add("wrong");
      place.querySelector(".errors").append(paragraph(error));
      place.querySelector("[data-kind]").setAttribute("aria-invalid", "true");
      place.closest("details")?.setAttribute("open", "");
    }
    summary.querySelector("h2").textContent = summary.dataset.title;
    summary.hidden = false;
    (form.querySelector("[aria-invalid]") || summary).focus();
  };

  // What looks like a slip is asked about by the page itself, which the form then posts to.
  const isDoubtful = async () => {
    if (form.querySelector("[name=sure]:checked")) return false;
    const answer = await fetch(`${document.body.dataset.root}/new/read`, {
      method: "POST",
      body: new URLSearchParams({ spec: JSON.stringify(specDocument()) }),
    });
    return answer.ok && (await answer.json()).doubts?.length > 0;
  };

  const send = async (button) => {
    if (await isDoubtful()) {
      form.submit();
      return;
    }
    const answer = await fetch(`${document.body.dataset.root}/v1/searches`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        Accept: "application/json",
        "Accept-Language": document.documentElement.lang,
      },
      body: JSON.stringify(specDocument()),
    });
    const body = await answer.json();
    if (answer.ok) {
      const id = encodeURIComponent(body.search.id);
      window.location.assign(`${document.body.dataset.root}/searches/${id}${window.location.search}`);
      return;
    }
    const errors = (body.errors ?? []).map((e) => ({ pointer: e.pointer, message: e.detail ?? e.message, hint: e.hint }));
    complain(errors.length ? errors : [{ message: body.detail ?? body.title ?? answer.statusText }]);
    button.disabled = false;
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    // Where the address cannot be reached by script, the browser's own way is left.
    send(button).catch(() => form.submit());
  });

  const file = document.querySelector("#paste input[type=file]");
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    const text = document.getElementById("spec-text");
    document.getElementById("paste-filename").value = file.files[0].name;
    text.value = await file.files[0].text();
    text.dispatchEvent(new Event("input", { bubbles: true }));
  });
})();
